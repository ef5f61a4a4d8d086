"""What runs inside the sandbox: the forking parent, the child of one trial, the programs."""
