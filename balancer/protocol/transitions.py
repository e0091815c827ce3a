"""The protocol as tables: what each side does with each message, in each state.

The coordinator and the sessions only walk these; `docs/protocol.md` is written from them. A pair
that is not in a table is dropped and counted.
"""

Table = dict[tuple[str, str], tuple[str, str]]

# What the coordinator does with a peer's message: (state, message) -> (next state, action).
COORDINATOR: Table = {
    ("absent", "WorkerHello"): ("worker waiting", "greet_worker"),
    ("worker waiting", "WorkerHello"): ("worker waiting", "greet_worker"),
    ("worker preparing", "WorkerHello"): ("worker preparing", "send_job"),
    ("worker ready", "WorkerHello"): ("worker ready", "hear_again"),
    ("worker waiting", "job"): ("worker preparing", "send_job"),
    ("worker waiting", "job ended"): ("worker waiting", "forget_source"),
    ("worker ready", "job ended"): ("worker waiting", "forget_source"),
    ("worker preparing", "job ended"): ("worker waiting", "forget_source"),
    ("worker preparing", "WorkerReady"): ("worker ready", "accept_worker"),
    ("worker preparing", "WorkerFailed"): ("worker waiting", "report_worker"),
    ("worker ready", "WorkerReady"): ("worker ready", "hear_ready"),
    ("worker ready", "ProbeDone"): ("worker ready", "take_costs"),
    ("worker ready", "DecodeDone"): ("worker ready", "take_payload"),
    ("worker ready", "SampleFailed"): ("worker ready", "take_failure"),
    ("worker waiting", "WorkerBye"): ("absent", "release_worker"),
    ("worker preparing", "WorkerBye"): ("absent", "release_worker"),
    ("worker ready", "WorkerBye"): ("absent", "release_worker"),
    ("worker waiting", "silence"): ("absent", "lose_worker"),
    ("worker preparing", "silence"): ("absent", "lose_worker"),
    ("worker ready", "silence"): ("absent", "lose_worker"),
    ("absent", "WorkerHeartbeat"): ("absent", "note_beat"),
    ("absent", "RankHello"): ("rank attached", "greet_rank"),
    ("rank attached", "RankHello"): ("rank attached", "greet_rank"),
    ("rank running", "RankHello"): ("rank running", "greet_rank"),
    ("rank attached", "StartRun"): ("rank running", "begin"),
    ("rank running", "StartRun"): ("rank running", "begin"),
    ("rank running", "SubmitTask"): ("rank running", "take_offer"),
    ("rank running", "RequestBatch"): ("rank running", "note_ask"),
    ("rank running", "Ack"): ("rank running", "free"),
    ("absent", "RequestBatch"): ("absent", "ask_who"),
    ("rank attached", "RequestBatch"): ("rank attached", "ask_who"),
    ("absent", "Ping"): ("absent", "answer"),
    ("rank attached", "Ping"): ("rank attached", "answer"),
    ("rank running", "Ping"): ("rank running", "answer"),
    ("absent", "GetStatus"): ("absent", "give_overview"),
    ("rank attached", "RankBye"): ("absent", "release_rank"),
    ("rank running", "RankBye"): ("absent", "release_rank"),
    ("rank attached", "gone"): ("absent", "release_rank"),
    ("rank running", "gone"): ("absent", "release_rank"),
    ("worker waiting", "gone"): ("absent", "lose_worker"),
    ("worker preparing", "gone"): ("absent", "lose_worker"),
    ("worker ready", "gone"): ("absent", "lose_worker"),
}

# What a worker does with the coordinator's messages.
WORKER: Table = {
    ("joining", "Welcome"): ("serving", "open_source"),
    ("serving", "Welcome"): ("serving", "open_source"),
    ("serving", "Lease"): ("serving", "queue_lease"),
    ("serving", "Revoke"): ("serving", "drop_lease"),
    ("joining", "UnknownPeer"): ("joining", "say_hello"),
    ("serving", "UnknownPeer"): ("serving", "say_hello"),
    ("joining", "PeerRejected"): ("ended", "end"),
    ("serving", "PeerRejected"): ("ended", "end"),
    ("joining", "Bye"): ("ended", "end"),
    ("serving", "Bye"): ("ended", "end"),
}

# What a rank does with the coordinator's messages.
RANK: Table = {
    ("joining", "Ready"): ("attached", "note_ready"),
    ("attached", "Ready"): ("attached", "note_ready"),
    ("running", "Ready"): ("running", "note_ready"),
    ("running", "Batch"): ("running", "take_batch"),
    ("running", "EpochEnd"): ("running", "note_end"),
    ("running", "UnknownPeer"): ("running", "come_back"),
    ("joining", "RunFailed"): ("failed", "fail"),
    ("attached", "RunFailed"): ("failed", "fail"),
    ("running", "RunFailed"): ("failed", "fail"),
    ("joining", "Pong"): ("joining", "note_status"),
    ("attached", "Pong"): ("attached", "note_status"),
    ("running", "Pong"): ("running", "note_status"),
    ("joining", "PeerRejected"): ("failed", "fail"),
    ("attached", "PeerRejected"): ("failed", "fail"),
    ("running", "PeerRejected"): ("failed", "fail"),
    ("joining", "Bye"): ("ended", "note_bye"),
    ("attached", "Bye"): ("ended", "note_bye"),
    ("running", "Bye"): ("ended", "note_bye"),
    ("failed", "Bye"): ("ended", "note_bye"),
}
