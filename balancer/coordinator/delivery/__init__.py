"""Planned steps until they are acknowledged: samples, payloads, and the byte budget."""
