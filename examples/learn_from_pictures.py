# pictures/CLASS/*.png of any size become a model, predictions and an ONNX file: docs/how/pictures.md draws some
import random
from pathlib import Path

from PIL import Image

from budgeted import Learner, export, save

paths = sorted(Path("pictures").glob("*/*"))
random.Random(1).shuffle(paths)
learner = Learner("cnn8", "vanilla", (3, 16, 16), budget="2TFLOP", memory="2MB")
for path in paths[:300]:
    learner.learn(Image.open(path), path.parent.name)
right = sum(learner.predict([Image.open(path)]) == [path.parent.name] for path in paths[300:])
print(learner, f"{right} of {len(paths[300:])} others right", sep="\n")
save(learner, "saved"), export(learner, "model", "onnx")
