"""Looking at a lake and guessing its config."""
