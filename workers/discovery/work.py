"""`FoundWork`: what a microbatch costs of each resource, as it was recognised from collate_fn."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ...balancer.planning.problem.options import Work

Recognised = Literal["padded", "packed", "constant", "unrecognised"]
RECOGNISED: tuple[Recognised, ...] = get_args(Recognised)


@dataclass(frozen=True, slots=True)
class ResourceWork:
    """The cost of a microbatch in one resource, from those of its samples.

    "padded": count x largest, each size rounded up to `multiple` and cut at `limit`; "packed": the
    sum; "constant": always the same; "unrecognised": none of these, and planned as a sum.
    """

    name: str
    work: Recognised
    multiple: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class FoundWork:
    """The cost of a microbatch in each resource; a PlanConfig takes `padded`.

    >>> work = FoundWork((ResourceWork("tokens", "padded", 8), ResourceWork("tiles", "packed")))
    >>> work.padded, work.packed, work.describe()
    (('tokens',), ('tiles',), 'tokens padded to multiples of 8, tiles add up')
    >>> FoundWork.from_dict(work.to_dict()) == work
    True
    """

    found: tuple[ResourceWork, ...]

    @property
    def padded(self) -> tuple[str, ...]:
        """The resources of which a microbatch costs count x largest."""
        return self._names("padded")

    @property
    def packed(self) -> tuple[str, ...]:
        """The resources that add up, those that were not recognised too."""
        return self._names("packed", "unrecognised")

    @property
    def constant(self) -> tuple[str, ...]:
        """The fields whose size is the same in every batch: no resources."""
        return self._names("constant")

    @property
    def unrecognised(self) -> tuple[str, ...]:
        """The resources of which it was not seen how they add up."""
        return self._names("unrecognised")

    @property
    def work(self) -> Work:
        """The work of the whole: "padded" where a resource is."""
        return "padded" if self.padded else "packed"

    def of(self, name: str) -> ResourceWork | None:
        """Return what was found of one resource; None where it was not asked about."""
        return next((each for each in self.found if each.name == name), None)

    def describe(self) -> str:
        """Return what was found in words, without what is no resource."""
        padded = [f"{each.name} padded{_to(each)}" for each in self.found if each.work == "padded"]
        parts = [*padded, *_listed(self._names("packed"), "add up", "adds up")]
        unknown = self.unrecognised
        if unknown:
            parts.append(f"{' and '.join(unknown)} not recognised, planned as adding up")
        return ", ".join(parts) or "nothing that varies is in the batches"

    def _names(self, *kinds: Recognised) -> tuple[str, ...]:
        return tuple(each.name for each in self.found if each.work in kinds)

    def to_dict(self) -> dict[str, Any]:
        """Return the value as JSON can hold it, for a ledger."""
        return {"found": [asdict(each) for each in self.found]}

    @classmethod
    def from_dict(cls, given: Any) -> "FoundWork":
        """Return what `to_dict` gave; ValueError for anything else."""
        try:
            found = tuple(ResourceWork(**each) for each in given["found"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"found work cannot be read: {error!r:.200}") from None
        for each in found:
            # A ledger may be damaged: isinstance would take True for a multiple of 1.
            limited = each.limit is None or (type(each.limit) is int and each.limit >= 1)
            counted = type(each.multiple) is int and each.multiple >= 1
            if (
                type(each.name) is not str
                or each.work not in RECOGNISED
                or not (counted and limited)
            ):
                raise ValueError(f"found work cannot be read: {each!r:.200}")
        return cls(found)


def _to(each: ResourceWork) -> str:
    multiple = f" to multiples of {each.multiple}" if each.multiple > 1 else ""
    return multiple + (f", at most {each.limit}" if each.limit is not None else "")


def _listed(names: Iterable[str], many: str, one: str) -> list[str]:
    return [f"{name} {many if name.endswith('s') else one}" for name in names]
