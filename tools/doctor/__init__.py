"""`counterpoise doctor`: what is wrong with an installation or a running job."""
