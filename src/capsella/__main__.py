"""``python -m capsella``."""

from capsella.cli.main import main

if __name__ == "__main__":
    main()
