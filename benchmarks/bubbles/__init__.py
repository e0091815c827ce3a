"""`make bench NAME=bubbles`: simulates Optimus' tables with our bubble filling beside."""
