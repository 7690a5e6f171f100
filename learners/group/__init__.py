"""What a group of workers agrees on: rules of passing updates on, how these travel, and how they are told apart."""
