"""The structure of a network: layers, channels that go together, attention; and how they are cut out of it."""
