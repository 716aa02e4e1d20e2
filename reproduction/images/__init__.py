"""Two-layer networks on Fashion-MNIST and CIFAR-10: data, tasks, one trainer, four figures."""
