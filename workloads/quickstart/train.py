"""Train a small network on handwritten digits: `python train.py [--epochs N] [--batch-size N]
[--learning-rate X]`.

The same settings are read from EPOCHS, BATCH_SIZE and LEARNING_RATE. The data (1,797 pictures of 8x8
pixels) ships with scikit-learn, so nothing is downloaded.
"""

from workloads.quickstart.training import main

if __name__ == "__main__":
    raise SystemExit(main())
