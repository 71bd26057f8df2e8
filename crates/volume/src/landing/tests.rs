use proptest::prelude::*;

use super::*;

fn written(blocks: &Range<u64>) -> Arrived {
    let entry = |physical| Entry { physical, epoch: 1, nonce: physical, flags: 0, tag: [0; 16] };
    let entries = blocks.clone().map(entry).collect();
    let change = Change::Write { block: blocks.start, entries, places: Vec::new() };
    Arrived { change, promised: 0 }
}

fn stretch() -> impl Strategy<Value = Range<u64>> {
    (0..40_u64, 1..12_u64).prop_map(|(start, blocks)| start..start + blocks)
}

proptest! {
    /// Whatever comes and lands, in whatever order it arrives: a reader waits for the last write of its blocks that has not landed, and no
    /// block of one that has stays behind.
    #[test]
    fn a_reader_waits_for_the_last_write_that_has_not_landed(
        steps in prop::collection::vec(prop_oneof![
            stretch().prop_map(Some),
            Just(None),
        ], 1..60),
        arrivals in prop::collection::vec(any::<prop::sample::Index>(), 60),
        asked in stretch(),
        wide in any::<bool>(),
    ) {
        let mut line = Line::default();
        let mut model: VecDeque<(Ticket, Range<u64>)> = VecDeque::new();
        for (step, arrival) in steps.into_iter().zip(arrivals) {
            if let Some(blocks) = step {
                model.push_back((line.push(blocks.clone()), blocks));
            } else if !model.is_empty() {
                let (ticket, blocks) = arrival.get(model.make_contiguous());
                let place = usize::try_from(ticket - line.first).unwrap();
                line.waiting[place] = Some(written(blocks));
            }
            while let Some((arrived, behind)) = line.pop() {
                let (_, blocks) = model.pop_front().unwrap();
                let Change::Write { block, entries, .. } = arrived.change else { unreachable!() };
                prop_assert_eq!((block, entries.len() as u64, behind), (blocks.start, blocks.end - blocks.start, blocks.end - blocks.start));
            }
            let asked = if wide { 0..u64::MAX } else { asked.clone() };
            let overlaps = |blocks: &Range<u64>| blocks.start < asked.end && asked.start < blocks.end;
            let last = model.iter().filter(|(_, blocks)| overlaps(blocks)).map(|(ticket, _)| *ticket).max();
            prop_assert_eq!(line.last_of(&asked), last);
            prop_assert_eq!(line.behind.is_empty(), model.is_empty());
        }
    }
}
