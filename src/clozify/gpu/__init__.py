"""GPU optimisations: padding-free batches, CUDA graphs, bf16 training with float32 master weights, fused kernels.

None of them changes what is computed; each can be replaced by PyTorch's own operations. `features` names them and
`fallback` warns where one cannot be used.
"""
