"""The protocol: messages, their wire format, transition tables, and both peers' sessions."""
