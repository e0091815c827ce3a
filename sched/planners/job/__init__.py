"""One plan of a whole job: a joint search over all that planners choose one by one."""
