//! A volume as a block device.
