"""The trainers of a job: which microbatches each has asked for, has got, and has done with."""
