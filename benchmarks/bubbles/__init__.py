"""`counterpoise bench bubbles`: simulates Optimus' tables with our bubble filling beside."""
