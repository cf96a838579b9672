"""HyLoRADA: landmarks, position biases and LoRA as a method of PEFT."""

# First of all: importing PEFT registers our methods, and for that no module here may be half-read.
import peft as peft
