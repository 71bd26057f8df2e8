//! `cvmio volume export` and `import`: a volume's content as a sealed stream, and back.

pub mod export;
pub mod import;
