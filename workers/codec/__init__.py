"""How samples become a header and a payload, and come back without a copy."""
