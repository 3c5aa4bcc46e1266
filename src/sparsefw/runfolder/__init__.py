"""The run folder: the contract between training, curves, sweeps and reports.

`files.py` names the files, `schema.py` types their contents, `write.py` is the one writer and `read.py` the one reader.

    run.json             what the run is: method, seed, metric, whether it was retrained, its job in a sweep
    config.yaml          the whole configuration
    environment.json     versions, hardware, date, version of the code, folder of the data
    data.json            the fingerprint of the data, and the changes of them that were accepted
    regions.txt          which layer is constrained to which region, and which layers are left out
    metrics.jsonl        one line per epoch; where validation was due, also how far the constraint has come
    checkpoints/         only during training; train/checkpoint.py knows their content
    model.safetensors    the trained network, with a header from which it is built again
    spectra.json         sorted filter norms and singular values of its layers
    result.json          final metrics and warnings; its presence says that training is over
    error.txt            the traceback of a sweep's training that failed
    training.png         a picture of the training, by `sparsefw train`
    training.svg         the same picture
    curves/              one KIND-FORM.json per curve on the test images, with its pictures
    curves-validation/   the same on the validation images
    small/               the compressed network, unless `sparsefw compress` is given another folder
    tensorboard/         curves of the tracker tensorboard
    wandb/               curves of the tracker wandb
    mlflow.db            curves of the tracker mlflow
    .lock                held by the process that trains into the folder

`sparsefw retrain` makes a folder that holds runs:

    retrain.json         the arguments of the retraining
    phase-N.safetensors  the pruned weights that phase N starts from
    phase-N/             the run folder of phase N
"""

from sparsefw.runfolder.files import RetrainingPaths, RunPaths, Split, is_run_folder
from sparsefw.runfolder.read import RunFolderError, RunRecord, find_runs, read_run
from sparsefw.runfolder.schema import RunFacts, RunKind, RunStatus
from sparsefw.runfolder.write import EpochWriter, RunWriter

__all__ = [
    "EpochWriter",
    "RetrainingPaths",
    "RunFacts",
    "RunFolderError",
    "RunKind",
    "RunPaths",
    "RunRecord",
    "RunStatus",
    "RunWriter",
    "Split",
    "find_runs",
    "is_run_folder",
    "read_run",
]
