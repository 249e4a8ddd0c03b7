use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::Pool;

fn counts(pool: &Pool, parts: usize, claiming: bool) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
    let work = |part: usize| {
        counts[part].fetch_add(1, Ordering::Relaxed);
    };
    if claiming { pool.run_claiming(parts, &work) } else { pool.run(parts, &work) }.unwrap();
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_part_runs_once() {
    for threads in 0..=5 {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads.max(1));
        for parts in [0, 1, 2, 3, 7, 64, 1000] {
            for claiming in [false, true] {
                assert_eq!(counts(&pool, parts, claiming), vec![1; parts], "{threads} {parts} {claiming}");
            }
        }
    }
}

#[test]
fn each_thread_begins_with_its_own_parts() {
    let pool = Pool::new(3).unwrap();
    let taken = Mutex::new(Vec::new());
    // As long as nobody is through, nobody takes another's parts.
    pool.run(12, &|part| {
        taken.lock().unwrap().push((thread::current().id(), part));
        thread::sleep(Duration::from_millis(2));
    })
    .unwrap();
    let taken = taken.into_inner().unwrap();
    for first in [0, 4, 8] {
        let owner = taken.iter().find(|(_, part)| *part == first).unwrap().0;
        assert_eq!(taken.iter().find(|(id, _)| *id == owner).unwrap().1, first);
    }
    assert_eq!(taken.iter().find(|(_, part)| *part == 0).unwrap().0, thread::current().id());
}

#[test]
fn the_parts_of_a_thread_that_does_not_come_are_taken_by_others() {
    let pool = Pool::new(2).unwrap();
    let caller = thread::current().id();
    let taken = AtomicUsize::new(0);
    // The worker stays in its first part until all others are done.
    pool.run(40, &|_| {
        let before = taken.fetch_add(1, Ordering::SeqCst);
        if thread::current().id() != caller {
            while taken.load(Ordering::SeqCst) < 40 {
                thread::yield_now();
            }
            assert!(before < 40);
        }
    })
    .unwrap();
    assert_eq!(taken.into_inner(), 40);
}

#[test]
fn workers_wake_after_sleep_and_between_short_regions() {
    let pool = Pool::new(2).unwrap();
    for round in 0..3000 {
        assert_eq!(counts(&pool, 4, round % 2 == 0), [1; 4]);
        // Around the time at which a worker goes to sleep.
        if round % 50 == 0 {
            thread::sleep(Duration::from_micros(round));
        } else if round % 7 == 0 {
            let start = std::time::Instant::now();
            while start.elapsed() < Duration::from_micros(48) {}
        }
    }
}

#[test]
fn a_panic_is_an_error_and_the_pool_lives_on() {
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads).unwrap();
        for guilty in [0, 5, 11] {
            for claiming in [false, true] {
                let work = |part: usize| assert!(part != guilty, "part {part} is guilty");
                let outcome = if claiming { pool.run_claiming(12, &work) } else { pool.run(12, &work) };
                let message = outcome.unwrap_err().to_string();
                assert!(message.contains(&format!("part {guilty} is guilty")), "{message}");
                assert_eq!(counts(&pool, 12, claiming), [1; 12]);
            }
        }
        assert!(pool.run(12, &|_| panic!("all of them")).is_err());
        assert_eq!(counts(&pool, 12, false), [1; 12]);
    }
}

#[test]
fn several_callers_and_nested_regions_do_not_block() {
    let pool = Pool::new(2).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..300 {
                    assert_eq!(counts(&pool, 9, true), [1; 9]);
                }
            });
        }
    });
    let sum = AtomicUsize::new(0);
    pool.run(4, &|_| {
        pool.run(5, &|_| {
            sum.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    })
    .unwrap();
    assert_eq!(sum.into_inner(), 20);
}
