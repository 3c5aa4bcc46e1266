"""What a network is made of: layers, channels that go together, attention; and how they are cut out of it."""
