"""`counterpoise analyze`: how unbalanced training on a data set would be, and what to do."""
