"""The data of a model: arrays in memory, on disk and over devices; what tells data sets apart."""
