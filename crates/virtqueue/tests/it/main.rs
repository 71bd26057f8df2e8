//! Both ends of a queue against each other, against a party that lies, and a device that is cut off at each of its stores.

mod cut;
mod hostile;
mod life;
mod memory;
mod sleep;
