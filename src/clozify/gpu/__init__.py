"""Everything that is only about CUDA: packing, graphs, fused kernels."""
