"""The command `counterpoise doctor`: checks an installation or a running job."""
