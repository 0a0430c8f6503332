"""Why Capsule Neural Networks Do Not Scale: Challenging the Dynamic Parse-Tree Assumption."""
