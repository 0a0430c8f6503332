"""Data sets: found or fetched, checked, split by name, and drawn in batches on the device that trains."""

from capsella.data import affnist, cifar, digits, folder, multimnist, sign, smallnorb, svhn
from capsella.data.augment import Affine, Augmentation, MirrorShift, Place, SabourCifar, Shift
from capsella.data.base import Batch, Batches, ImageData
from capsella.data.draws import Draws, Order
from capsella.data.places import Places, cache_folder
from capsella.data.registry import Content, data_entry, list_data, load_data, register_data
from capsella.data.samples import Samples, Stored, View
from capsella.data.tensors import from_tensors
from capsella.errors import DataError

__all__ = [
    "Affine",
    "Augmentation",
    "Batch",
    "Batches",
    "Content",
    "DataError",
    "Draws",
    "ImageData",
    "MirrorShift",
    "Order",
    "Place",
    "Places",
    "SabourCifar",
    "Samples",
    "Shift",
    "Stored",
    "View",
    "affnist",
    "cache_folder",
    "cifar",
    "data_entry",
    "digits",
    "folder",
    "from_tensors",
    "list_data",
    "load_data",
    "multimnist",
    "register_data",
    "sign",
    "smallnorb",
    "svhn",
]
