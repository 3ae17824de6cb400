"""Entry of ``python -m jaxkern``."""

from jaxkern.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
