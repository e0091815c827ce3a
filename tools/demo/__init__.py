"""`counterpoise demo`: train a small vision-language model unbalanced and balanced."""
