"""What the role's action plugins share. Runs on the controller; nothing here talks to a host."""
