"""Train a small network on handwritten digits: `python train.py [--epochs N] [--batch-size N]
[--learning-rate X] [--workers N]`.

The same settings are read from EPOCHS, BATCH_SIZE, LEARNING_RATE and WORKERS. Workers are processes on this machine,
at most one for each GPU of the job, or each core without GPUs. They share each batch and add up their gradients. The
data (1,797 pictures of 8x8 pixels) ships with scikit-learn, so nothing is downloaded.
"""

from workloads.quickstart.start import main

if __name__ == "__main__":
    raise SystemExit(main())
