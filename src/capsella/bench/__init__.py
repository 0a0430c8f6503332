"""Speed, measured: correct first, then timed, each figure beside the floor that memory sets."""
