//! The kind of each error, for exit codes.

use error_kind::{HasKind, Kind};

use crate::simulated::SimulatedError;
use crate::snp::TableError;
use crate::snp::measure::MeasureError;
use crate::{EvidenceError, PolicyError, Refusal};

impl HasKind for EvidenceError {
    fn kind(&self) -> Kind {
        Kind::Usage
    }
}

impl HasKind for PolicyError {
    fn kind(&self) -> Kind {
        Kind::Policy
    }
}

impl HasKind for Refusal {
    fn kind(&self) -> Kind {
        Kind::Policy
    }
}

impl HasKind for MeasureError {
    fn kind(&self) -> Kind {
        Kind::Usage
    }
}

impl HasKind for TableError {
    fn kind(&self) -> Kind {
        Kind::Io
    }
}

impl HasKind for SimulatedError {
    fn kind(&self) -> Kind {
        match self {
            Self::NoRoot | Self::NoSeat => Kind::Usage,
            Self::Cipher => Kind::Io,
        }
    }
}
