"""Pure functions of tensors: returns, losses, optimiser steps."""
