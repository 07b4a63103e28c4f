"""Pictures and tables for people: what was released, drawn. Nothing here reads anything but what it is given."""
