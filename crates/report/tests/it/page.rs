//! Pages, pictures and summaries of the golden run.

use report::compare::{self, Verdict};
use report::page::{Options, markdown, page, plots};
use report::plot::Font;
use report::run::State;
use report::table;

use super::golden;

#[test]
fn ratios_are_those_that_the_run_was_made_with() {
    let run = golden();
    let of = |case: &str, target: &str| compare::within(&run, case, "file", target).unwrap();
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
    let slower = of("bandwidth-read", "cvmio");
    // The turns swing by 3 %, and their pairs by less than 1 %.
    assert!(near(slower.ratio.value, 0.62) && slower.ratio.reach() < 0.015, "{slower:?}");
    assert_eq!((slower.verdict, slower.paired), (Verdict::Worse, true));
    assert_eq!(of("latency-randread", "cvmio").verdict, Verdict::Worse);
    assert!(near(of("latency-randread", "cvmio").ratio.value, 1.0 / 0.62));
    assert!(compare::within(&run, "iops-randwrite", "file", "qemu LUKS").is_none());
    assert_eq!(of("bandwidth-read", "file again").verdict, Verdict::Noise);
    assert!(
        table::comparisons(&run, "cvmio")
            .iter()
            .any(|one| one.subject == "file" && one.verdict == Verdict::Better)
    );
}

#[test]
fn a_difference_like_the_controls_is_noise() {
    let mut run = golden();
    for sample in run.samples.iter_mut().filter(|sample| sample.target == "cvmio level=off") {
        sample.value /= 0.81 / 1.008;
    }
    // 0.8 % with an interval that does not hold 1, and the control differs by 1 %.
    let close = compare::within(&run, "bandwidth-read", "file", "cvmio level=off").unwrap();
    assert!(!close.ratio.holds(1.0) && close.verdict == Verdict::Noise, "{close:?}");
    run.turns = 1;
    run.samples.retain(|sample| sample.turn == 0);
    assert_eq!(compare::within(&run, "bandwidth-read", "file", "cvmio").unwrap().verdict, Verdict::Unknown);
}

#[test]
fn two_runs_are_compared_target_by_target() {
    let (first, mut second) = (golden(), golden());
    for sample in second.samples.iter_mut().filter(|sample| sample.target == "cvmio") {
        sample.value *= 1.5;
    }
    let all = compare::runs(&first, &second);
    let of =
        |case: &str, target: &str| all.iter().find(|one| one.case == case && one.subject == target).unwrap();
    assert_eq!(of("bandwidth-read", "cvmio").verdict, Verdict::Better);
    assert_eq!(of("latency-randread", "cvmio").verdict, Verdict::Worse);
    assert_eq!(of("bandwidth-read", "file").verdict, Verdict::Noise);
    assert!(!of("bandwidth-read", "file").paired);
}

#[test]
fn what_changed_for_all_targets_is_no_difference_of_one() {
    let mut random = fastrand::Rng::with_seed(45);
    let mut normal = || -> f64 { (0..12).map(|_| random.f64()).sum::<f64>() - 6.0 };
    let (mut called, mut all) = (0u32, 0u32);
    for _ in 0..60 {
        // The same run twice, on a machine whose mood changes by some percent from one case to the next.
        let mut pair = [golden(), golden()];
        for run in &mut pair {
            let moods: Vec<f64> = run.cases.iter().map(|_| (0.05 * normal()).exp()).collect();
            let mood =
                |case: &str| run.cases.iter().position(|one| one.name == case).map_or(1.0, |at| moods[at]);
            for sample in &mut run.samples {
                sample.value *= mood(&sample.case) * (0.01 * normal()).exp();
            }
        }
        let comparisons = compare::runs(&pair[0], &pair[1]);
        let judged = comparisons.iter().filter(|one| one.own.is_some());
        called += u32::try_from(judged.clone().filter(|one| one.verdict != Verdict::Noise).count()).unwrap();
        all += u32::try_from(judged.count()).unwrap();
        // The baseline cannot be judged, and is not.
        let base = comparisons.iter().filter(|one| one.own.is_none());
        assert!(base.clone().all(|one| matches!(one.verdict, Verdict::Noise | Verdict::Changed)));
    }
    let share = f64::from(called) / f64::from(all);
    assert!(all > 900 && share < 0.05, "{called} of {all}");
    let mut second = golden();
    second.baseline = Some("cvmio".into());
    for sample in &mut second.samples {
        sample.value *= 1.5;
    }
    assert!(compare::runs(&golden(), &second).iter().all(|one| one.verdict == Verdict::Changed));
    assert!(table::about_across(&golden(), &second).contains("no baseline in common"));
}

#[test]
fn captions_say_what_was_taken() {
    let caption = |run: &report::run::Run| table::values(run, run.cases[0].metric).caption;
    let mut run = golden();
    assert!(caption(&run).contains("of 5 turns;"), "{}", caption(&run));
    run.state = State::Interrupted;
    run.samples.retain(|sample| sample.turn < 3 && (sample.target != "cvmio" || sample.turn == 0));
    assert!(caption(&run).contains("of 1 to 3 turns of 5 planned;"), "{}", caption(&run));
    // One turn has no spread.
    let text = table::values(&run, run.cases[0].metric).text();
    let row = text.lines().find(|line| line.starts_with("bandwidth-read")).unwrap();
    assert_eq!(row.matches('±').count(), 4, "{row}");
    assert!(markdown(&run, &Options::default()).contains("**Interrupted: not everything was measured.**"));
    run.state = State::Running;
    assert!(markdown(&run, &Options::default()).contains("or was killed"));
}

#[test]
fn tails_and_processor_time_stand_in_tables() {
    let run = golden();
    let text = table::percentiles(&run).text();
    let row = text.lines().find(|line| line.starts_with("latency-randread, read")).unwrap();
    assert!(row.contains("32.4 / 108 / 360"), "{text}");
    let text = table::processors(&run).text();
    let row = text.lines().find(|line| line.starts_with("latency-randread")).unwrap();
    // A quarter of a processor, and a request each 36 us.
    assert!(row.contains("0.250 (9.00 µs)"), "{text}");
    let ratios = table::ratios(&run, "file");
    let at = ratios.head.iter().position(|name| name == "overhead").unwrap();
    let of =
        |case: &str| ratios.rows.iter().find(|row| row[0] == case && row[1] == "cvmio").unwrap()[at].clone();
    // 1 : 0.62, be it a rate or a time.
    assert_eq!((of("bandwidth-read"), of("latency-randread")), ("61.3 %".into(), "61.3 %".into()));
}

#[test]
fn targets_on_two_disks_are_said_to_be() {
    let mut run = golden();
    let on = |run: &mut report::run::Run, place: &str| {
        let target = run.targets.iter_mut().find(|target| target.name == "cvmio").unwrap();
        target.storage = Some(place.into());
    };
    on(&mut run, "ext4 on /dev/vda, mounted at /elsewhere");
    assert!(!markdown(&run, &Options::default()).contains("two disks"));
    on(&mut run, "xfs on /dev/vdb, mounted at /mnt");
    let said = markdown(&run, &Options::default());
    assert!(
        said.contains("cvmio lies on xfs on /dev/vdb, mounted at /mnt, and file on ext4 on /dev/vda"),
        "{said}"
    );
    assert!(said.contains("cvmio (another disk)") && said.contains("what differs between the two disks"));
    on(&mut run, "tmpfs on tmpfs, mounted at /tmp/x");
    assert!(!markdown(&run, &Options::default()).contains("two disks"));
}

#[test]
fn the_summary_is_the_golden_one() {
    let text = markdown(&golden(), &Options::default());
    let golden = include_str!("golden/summary.md");
    assert!(text == golden, "tests/it/golden/summary.md differs from:\n{text}");
}

#[test]
fn the_page_has_everything_in_it() {
    let html = page(&[golden()], &Options::default()).unwrap();
    // Values and ratios of three metrics, and the run's course.
    assert_eq!(html.matches("<svg").count(), 7);
    for word in [
        "cvmio level=off",
        "not measurable here, because the kernel has no device mapper",
        "&lt;broken &amp; gone&gt;",
        "thesis, 5.1, RQ5",
        "36 % overhead",
        "rustc",
        "cvmio volume attach disk --as nbd",
        "Noise: file measured against itself",
        "cvmio: bandwidth 0.6",
    ] {
        assert!(html.contains(word), "{word}");
    }
    for word in ["<script", "http-equiv", "@import", "src=", "<broken"] {
        assert!(!html.contains(word), "{word}");
    }
    let links = html.match_indices("href=").count();
    assert_eq!((links, html.matches("href=\"data:,\"").count()), (1, 1), "nothing is loaded from elsewhere");
    assert!(
        !page(&[golden()], &Options { without_papers: true, ..Options::default() })
            .unwrap()
            .contains("thesis")
    );
}

#[test]
fn an_emulated_machine_is_said_everywhere() {
    let mut run = golden();
    run.emulated = true;
    run.state = State::Interrupted;
    let html = page(std::slice::from_ref(&run), &Options::default()).unwrap();
    let said = html.matches("emulated: for function, not for speed").count();
    let captions = || html.split("<caption>").skip(1).filter_map(|rest| rest.split("</caption>").next());
    // What the host did meanwhile is not emulated.
    for caption in captions().filter(|caption| !caption.starts_with("Meanwhile")) {
        assert!(caption.contains("emulated: for function, not for speed"), "{caption}");
    }
    // Once at the top, in each of the six plots, and in the titles of the three that are absolute and their names.
    assert!(said >= 7, "{said}");
    for svg in html.split("<svg").skip(1) {
        let svg = svg.split("</svg>").next().unwrap();
        assert!(svg.contains("emulated: for function, not for speed"));
    }
    assert!(html.contains("Interrupted: not everything was measured"));
    assert!(markdown(&run, &Options::default()).contains("**emulated: for function, not for speed**"));
}

#[test]
fn a_research_question_is_answered_from_the_data() {
    let mut run = golden();
    run.question = Some(5);
    let html = page(&[run.clone()], &Options::default()).unwrap();
    assert!(
        html.contains("RQ5: What does protection of the data cost?") && html.contains("cvmio: latency 1.6")
    );
    assert!(html.contains("dm-crypt costs little bandwidth"));
    run.samples.clear();
    assert!(page(&[run], &Options::default()).unwrap().contains("Nothing was measured that answers this."));
}

#[test]
fn another_baseline_can_be_picked() {
    let options = Options { baseline: Some("cvmio".into()), ..Options::default() };
    let html = page(&[golden()], &options).unwrap();
    assert!(html.contains("Ratio to cvmio") && !html.contains("Ratio to file"));
}

#[test]
fn two_runs_make_a_page_that_compares_them() {
    let html = page(&[golden(), golden()], &Options::default()).unwrap();
    assert_eq!(html.matches("<svg").count(), 2 * 7 + 3 + 3);
    assert!(html.contains("not taken in turns"));
}

#[test]
fn an_empty_run_makes_a_page() {
    let mut run = golden();
    run.samples.clear();
    let html = page(&[run], &Options::default()).unwrap();
    assert_eq!(html.matches("<svg").count(), 0);
    assert!(html.contains("not measurable here"));
}

#[test]
fn pictures_have_bars() {
    let path = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";
    let Ok(file) = std::fs::read(path) else {
        eprintln!("skipped: {path} is not there (package fonts-dejavu-core)");
        return;
    };
    assert!(Font::new(b"no font".to_vec()).is_err());
    let font = Font::new(file).unwrap();
    let plots = plots(&golden(), &Options::default());
    assert_eq!(plots.len(), 6);
    let picture = plots[0].png(&font, 2).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(&picture)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(info.width, 960);
    // The colour of the second series: a bar of 0.62 of the width, twice.
    let blue = pixels.chunks(3).filter(|pixel| *pixel == [0x00, 0x72, 0xB2]).count();
    assert!(blue > 2 * 26 * 300, "{blue}");
}
