"""Start a job and compile what it runs: where its parts are, who meets whom, and its programs."""
