"""`counterpoise bench bubbles`: Optimus' tables in simulation, and what ours adds."""
