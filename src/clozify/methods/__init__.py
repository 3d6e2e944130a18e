"""The paper, one module per step: tensors and rows in, results out; no run folders and no jobs.

| paper | module |
|---|---|
| 3.1 a pair's scores s_p(l given x) | `score` |
| 3.1 fine-tuning of a pair with L_CE | `finetune` |
| 3.2 auxiliary language modelling, L_MLM | `finetune`, `masking` |
| 3.3 (1) an ensemble member for each pair and seed | `finetune` |
| 3.3 (2) weights w(p), weighted scores s_M | `ensemble` |
| 3.3 (2, 3) soft labels at T = 2, the final classifier C | `distill` |
| 3.4 iPET: generations, teachers, the draw of rows | `ipet` |
| 3.4 zero-shot iPET's M^0, the untrained pairs | `clozify.pipeline.untrained` |
| 4 table 1, lines 1 and 2: pairs without training | `zero_shot` |
| not in the paper: label vectors on a frozen encoder | `frozen` |
| not in the paper: abstaining, prediction sets, out-of-scope scores | `selective`, `conformal`, `scope` |
| not in the paper: estimated accuracy, calibration | `reliability` |
| not in the paper: label errors by confident learning | `label_errors` |
| 4.2 the supervised baseline | `supervised` |
| 4.3 UDA and MixText, with paraphrases | `uda`, `mixtext`; `backtranslation`, `rewriting` |
| 5 in-domain pretraining | `pretrain`, `masking` |
| appendix E automatic verbalizer search | `verbalizer_candidates`, `verbalizer_search`, `verbalizer_validation` |

The losses are in `clozify.training.losses`, the models M and C in `clozify.models`.

A new method is a module with one function: it takes a model, encoded rows, labels and a `TrainingSetup`, trains the
model in place with `clozify.training.loop.train`, and returns the losses. `supervised` is the shortest example.
"""
