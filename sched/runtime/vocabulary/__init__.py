"""Run vocabulary parallelism: output layer and input embedding divided over pipeline ranks."""
