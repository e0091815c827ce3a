"""`counterpoise try`: a user's own data set under torch's DataLoader, ours, and ours balanced."""
