//! Each combination of suite, confidentiality, integrity, freshness and provision: it is refused, or it holds what it promises.

use crate::common::medium::{put, put_back};
use crate::common::{Bench, Session, credential, options, page};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::geometry::{Geometry, Shape};
use volume::{CreateOptions, Kind, Request, create};

const BLOCKS: u64 = 4096;

/// As `docs/semantics.md` has it, in words of its own.
fn is_legal(suite: SuiteCode, confidentiality: bool, integrity: bool, freshness: Freshness) -> bool {
    let xts = suite == SuiteCode::Aes256Xts;
    match (confidentiality, integrity) {
        (true, true) => !xts,
        (true, false) => xts && freshness == Freshness::Off,
        (false, true) => suite == SuiteCode::Aes256Gcm,
        (false, false) => !xts && freshness == Freshness::Off,
    }
}

fn all() -> Vec<CreateOptions> {
    let mut all = Vec::new();
    for &suite in SuiteCode::ALL {
        for protected in 0..4 {
            let (confidentiality, integrity) = (protected & 1 != 0, protected & 2 != 0);
            for &freshness in Freshness::ALL {
                for &provision in Provision::ALL {
                    let options = options(BLOCKS, Shape::STANDARD);
                    all.push(CreateOptions {
                        suite,
                        confidentiality,
                        integrity,
                        freshness,
                        provision,
                        ..options
                    });
                }
            }
        }
    }
    all
}

#[test]
fn every_combination_is_refused_or_keeps_its_promises() {
    let (mut legal, mut refused) = (0, 0);
    for options in all() {
        let store_blocks = 16384;
        let bench = Bench::new(options.clone(), store_blocks);
        if is_legal(options.suite, options.confidentiality, options.integrity, options.freshness) {
            legal += 1;
            keeps_its_promises(&bench);
        } else {
            refused += 1;
            let created =
                create(bench.environment.clone(), options.clone(), credential(), Box::new(|_| Ok(())))
                    .and_then(|job| job.block());
            assert_eq!(created.err().map(|error| error.kind()), Some(Kind::Usage), "{options:?}");
            assert!(
                bench.image().iter().flatten().all(|byte| *byte == 0),
                "{options:?}: something was written"
            );
        }
    }
    // 4 suites, 4 protections, 5 levels, 2 provisions. Legal: 3 suites at 5 levels, XTS at one, integrity alone at 5, nothing with 3 suites.
    assert_eq!((legal, refused), (2 * (15 + 1 + 5 + 3), 160 - 48));
}

fn keeps_its_promises(bench: &Bench) {
    let CreateOptions { confidentiality, integrity, freshness, .. } = bench.options;
    let case = format!("{:?}", bench.options);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(5, 40, 9).expect("written");
    keep(&mut session);
    drop(session);

    let mut session = bench.attach(&policy).expect("attached after a crash");
    expect(&mut session, 44, 9, &case);
    session.detach().expect("detached");
    let old = bench.image();

    let mut session = bench.attach(&policy).expect("attached again");
    expect(&mut session, 5, 9, &case);
    keep(&mut session);
    let before = bench.image();
    session.write(7, 1, 0xab).expect("overwritten");
    keep(&mut session);
    let after = bench.image();
    let is_plain = after.contains(&page(0xab));
    assert_eq!(is_plain, !confidentiality, "{case}");
    let data_start = Geometry::for_logical(BLOCKS, Shape::STANDARD).expect("a size").data_start();
    let start = usize::try_from(data_start).expect("small");
    let changed: Vec<usize> = (start..after.len()).filter(|at| before[*at] != after[*at]).collect();
    assert_eq!(changed.len(), 1, "{case}: a block written is a block in the store");
    let at = changed[0];
    let mut damaged = after[at].clone();
    damaged[100] ^= 1;
    put(&*bench.environment.store, at as u64, &damaged);
    match session.read(7, 1) {
        Ok(read) => assert!(!integrity && read != page(0xab), "{case}: a changed block is read"),
        Err(error) => assert!(integrity && error.kind() == Kind::Corrupt, "{case}: {error}"),
    }
    put(&*bench.environment.store, at as u64, &after[at]);
    expect(&mut session, 7, 0xab, &case);
    session.detach().expect("detached");

    put_back(&*bench.environment.store, &old);
    match bench.attach(&policy) {
        Ok(mut session) => {
            assert_eq!(freshness, Freshness::Off, "{case}: an older image is taken");
            expect(&mut session, 7, 9, &case);
        }
        Err(error) => {
            assert!(freshness != Freshness::Off && error.kind() == Kind::Stale, "{case}: {error}");
        }
    }
}

/// Makes what was written last, as the level has it.
fn keep(session: &mut Session) {
    session.flush().expect("flushed");
    session.one(Request::Commit).result.expect("committed");
}

fn expect(session: &mut Session, block: u64, fill: u8, case: &str) {
    assert_eq!(session.read(block, 1).expect("readable"), page(fill), "{case}: block {block}");
}
