"""Turns become ids; labels stand where the model is to learn."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from counterpoise.workers.sources.labels import IGNORED
from counterpoise.workers.vision_language.token_layout import ByteTokenizer, Markup, Turn, lay_out

T = ByteTokenizer()
MARKUP = Markup(T.image_id, (T.bos_id,), (T.eos_id,), (T.human_id,), (T.assistant_id,))
TURNS = st.lists(
    st.builds(
        Turn,
        st.sampled_from(["human", "assistant", "document"]),
        st.lists(st.text(max_size=6), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


@given(TURNS, st.data())
def test_every_piece_and_image_is_there_once_and_in_order(spoken, data):
    count = sum(len(turn.pieces) - 1 for turn in spoken)
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    ids, labels = lay_out(spoken, sizes, T.array, MARKUP)
    assert ids.dtype == labels.dtype == np.int32
    assert (ids == T.image_id).sum() == sum(sizes)
    assert T.decode(ids) == "".join(piece for turn in spoken for piece in turn.pieces)
    taught = labels != IGNORED
    assert np.array_equal(labels[taught], ids[taught])
    assert not taught[ids == T.image_id].any()
    assert not taught[0]
    assert T.decode(ids[taught]) == "".join(
        piece for turn in spoken if turn.role != "human" for piece in turn.pieces
    )


@given(TURNS, st.integers(1, 40))
def test_cutting_keeps_a_beginning(spoken, most):
    spoken = [Turn(turn.role, ("".join(turn.pieces),)) for turn in spoken]
    whole, cut = (lay_out(spoken, [], T.array, MARKUP, limit) for limit in (None, most))
    for uncut, shorter in zip(whole, cut, strict=True):
        assert np.array_equal(uncut[:most], shorter)


def test_an_image_is_never_cut():
    spoken = [Turn("document", ("ab", "cd"))]
    assert len(lay_out(spoken, [4], T.array, MARKUP, 7)[0]) == 7
    with pytest.raises(ValueError, match="ends at token 7, beyond max_tokens=6"):
        lay_out(spoken, [4], T.array, MARKUP, 6)


def test_the_first_token_is_never_a_label():
    _, labels = lay_out([Turn("document", ("ab",))], [], T.array, Markup(image=9))
    assert labels.tolist() == [IGNORED, ord("b")]


@given(st.text())
def test_bytes_come_back_as_the_text(text):
    text = text.encode("utf-8", "replace").decode()
    assert T.decode(T(text)) == text
    assert T.array(text).tolist() == T(text)
