//! The assignment that a launcher gives its processes: rank, number of ranks, and job.
//!
//! | launcher | rank | nodes | of this host | job |
//! |---|---|---|---|---|
//! | Open MPI | `OMPI_COMM_WORLD_RANK` | `…_SIZE` | `…_LOCAL_SIZE` | `PMIX_NAMESPACE` |
//! | MPICH, Intel MPI (Hydra) | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALNRANKS` | by `PMI_FD` |
//! | SLURM | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS` | on one node | `SLURM_JOB_ID`… |
//! | anything else | `MILLSTREAM_RANK` | `MILLSTREAM_NODES` | | `MILLSTREAM_JOB` |
//!
//! A launcher that starts processes of another wins over it: the first family of the table that is
//! complete counts. A batch script of SLURM is no step: what it runs without `srun` is alone.

use std::path::PathBuf;

use crate::error::ClusterError;
use crate::mesh::check_nodes;

/// Names the job in place of what the launcher says. Every process of a job needs the same.
pub const JOB_VARIABLE: &str = "MILLSTREAM_JOB";

/// Bytes of a job's name at most: it becomes part of files' names.
const JOB_BYTES_MAX: usize = 120;

/// The place of this process in a job that a launcher started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// This process.
    pub rank: u32,
    /// Processes of the job.
    pub nodes: u32,
    /// The launcher, by the name that a user knows.
    pub launcher: &'static str,
    /// Which job of this user it is: letters, digits, `-`, `_` and `.`.
    pub job: String,
    /// Processes of the job on this host, where the launcher tells.
    pub local: Option<u32>,
    /// Processors of each process, where the launcher was given their number.
    pub cores: Option<u32>,
    /// Where the nodes publish their addresses by default.
    pub directory: PathBuf,
    /// A descriptor of this process at which the launcher speaks PMI-1.
    pub pmi: Option<i32>,
}

/// How a launcher calls things.
struct Family {
    launcher: &'static str,
    rank: &'static str,
    nodes: &'static str,
    local: &'static str,
    /// Together they name the job; the first has to be there.
    job: &'static [&'static str],
}

const FAMILIES: [Family; 4] = [
    Family {
        launcher: "mpirun of Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        nodes: "OMPI_COMM_WORLD_SIZE",
        local: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: &["PMIX_NAMESPACE"],
    },
    Family {
        launcher: "the launcher (PMI)",
        rank: "PMI_RANK",
        nodes: "PMI_SIZE",
        local: "MPI_LOCALNRANKS",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
    },
    Family {
        launcher: "srun",
        rank: "SLURM_PROCID",
        nodes: "SLURM_STEP_NUM_TASKS",
        local: "",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
    },
    Family {
        launcher: "MILLSTREAM_NODES",
        rank: "MILLSTREAM_RANK",
        nodes: "MILLSTREAM_NODES",
        local: "",
        job: &[JOB_VARIABLE],
    },
];

impl Assignment {
    /// The assignment in the environment of this process; `None` where no launcher started it, or
    /// started it alone.
    ///
    /// # Errors
    /// When a launcher's variables contradict each other.
    pub fn from_env() -> Result<Option<Self>, ClusterError> {
        Self::from(&|name| std::env::var(name).ok())
    }

    pub(crate) fn from(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, ClusterError> {
        for family in &FAMILIES {
            if let Some((rank, nodes)) = family.place(get)? {
                let found = (nodes > 1).then(|| family.assign(rank, nodes, get));
                return found.transpose();
            }
        }
        Ok(None)
    }

    /// The place of this process among some of the job's ranks, in ascending order, which go on
    /// without the others; `None` if it is not one of them. `job` names the job that they are.
    #[must_use]
    pub fn among(&self, ranks: &[u32], job: String) -> Option<Self> {
        let rank = ranks.iter().position(|rank| *rank == self.rank)?;
        let nodes = ranks.len() as u32;
        // Whether the others are on this host is not known of some of them.
        let local = self.local.map(|local| if local == self.nodes { nodes } else { 1 });
        Some(Self { rank: rank as u32, nodes, local, job, ..self.clone() })
    }

    /// True where the launcher started processes on other hosts too.
    pub fn leaves_host(&self) -> bool {
        self.local.is_some_and(|local| local < self.nodes)
    }
}

impl Family {
    fn place(
        &self,
        get: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<(u32, u32)>, ClusterError> {
        let Some(nodes) = get(self.nodes) else { return Ok(None) };
        let Some(rank) = get(self.rank) else {
            let detail = format!("{} is {nodes}, but {} is not set", self.nodes, self.rank);
            return Err(ClusterError::Environment { detail });
        };
        let number = |name: &str, value: &str| {
            value.trim().parse::<u32>().map_err(|_| ClusterError::Environment {
                detail: format!("{name} is '{value}', which is no number"),
            })
        };
        let (rank, nodes) = (number(self.rank, &rank)?, number(self.nodes, &nodes)?);
        if rank >= nodes {
            let detail = format!("{} is {rank}, but {} is {nodes}", self.rank, self.nodes);
            return Err(ClusterError::Environment { detail });
        }
        check_nodes(nodes)?;
        Ok(Some((rank, nodes)))
    }

    fn assign(
        &self,
        rank: u32,
        nodes: u32,
        get: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Assignment, ClusterError> {
        let number = |name: &str| get(name)?.trim().parse::<u32>().ok();
        let mut local = number(self.local).filter(|local| (1..=nodes).contains(local));
        if let Some(hosts) = number("SLURM_STEP_NUM_NODES").filter(|_| local.is_none()) {
            // Tasks are spread evenly unless asked otherwise; only "all" and "not all" matter much.
            local = Some(if hosts <= 1 { nodes } else { nodes.div_ceil(hosts).min(nodes - 1) });
        }
        let directory = match local {
            Some(local) if local == nodes => std::env::temp_dir(),
            _ => get("SLURM_SUBMIT_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from),
        };
        Ok(Assignment {
            rank,
            nodes,
            launcher: self.launcher,
            job: self.job(get)?,
            local,
            cores: number("SLURM_CPUS_PER_TASK").filter(|cores| *cores > 0),
            directory,
            pmi: number("PMI_FD").and_then(|fd| i32::try_from(fd).ok()),
        })
    }

    fn job(&self, get: &dyn Fn(&str) -> Option<String>) -> Result<String, ClusterError> {
        let named = get(JOB_VARIABLE).filter(|job| !job.is_empty());
        let reported = || {
            get(self.job[0])?;
            let parts: Vec<_> = self.job.iter().filter_map(|name| get(name)).collect();
            Some(parts.join("."))
        };
        let job = match named.or_else(reported) {
            Some(job) => job,
            None => parent().ok_or_else(|| ClusterError::Environment {
                detail: format!("no variable names the job, not even {JOB_VARIABLE}"),
            })?,
        };
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        Ok(job.chars().take(JOB_BYTES_MAX).map(|c| if known(c) { c } else { '_' }).collect())
    }
}

/// The process that started this one, and when it began: nodes that it starts have it in common.
fn parent() -> Option<String> {
    let pid = rustix::process::getppid()?.as_raw_nonzero();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the start is the 20th field behind it.
    let start = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
    Some(format!("process-{pid}-{start}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<Option<Assignment>, ClusterError> {
        let get = |name: &str| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        Assignment::from(&get)
    }

    const OMPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_NAMESPACE", "prterun-host:7@1"),
    ];
    const HYDRA: [(&str, &str); 4] =
        [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1"), ("PMI_FD", "6")];
    const SLURM: [(&str, &str); 7] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "6"),
        ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_JOB_ID", "17"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_SUBMIT_DIR", "/shared/jobs"),
        ("SLURM_CPUS_PER_TASK", "8"),
    ];

    #[test]
    fn each_family_is_understood() {
        assert_eq!(from(&[]).unwrap(), None);
        let open = from(&OMPI).unwrap().unwrap();
        assert_eq!((open.rank, open.nodes, open.leaves_host()), (2, 4, false));
        assert_eq!((open.job.as_str(), open.pmi), ("prterun-host_7_1", None));
        assert_eq!(open.directory, std::env::temp_dir());
        let hydra = from(&HYDRA).unwrap().unwrap();
        assert_eq!((hydra.rank, hydra.nodes, hydra.leaves_host()), (1, 2, true));
        assert_eq!((hydra.pmi, hydra.directory), (Some(6), PathBuf::from(".")));
        assert!(hydra.job.starts_with("process-"), "{}", hydra.job);
        let slurm = from(&SLURM).unwrap().unwrap();
        assert_eq!((slurm.rank, slurm.nodes, slurm.leaves_host()), (5, 6, true));
        assert_eq!((slurm.job.as_str(), slurm.cores), ("17.0", Some(8)));
        assert_eq!(slurm.directory, PathBuf::from("/shared/jobs"));
        let own = [("MILLSTREAM_RANK", "0"), ("MILLSTREAM_NODES", "3"), (JOB_VARIABLE, "a/b")];
        let own = from(&own).unwrap().unwrap();
        assert_eq!((own.rank, own.nodes, own.job.as_str(), own.local), (0, 3, "a_b", None));
    }

    #[test]
    fn some_ranks_go_on_without_the_others() {
        let open = from(&OMPI).unwrap().unwrap();
        let some = open.among(&[0, 2, 3], "job.1".into()).unwrap();
        assert_eq!((some.rank, some.nodes, some.leaves_host()), (1, 3, false));
        assert_eq!(some.job, "job.1");
        assert_eq!(open.among(&[0, 1, 3], "job.1".into()), None);
        let slurm = from(&SLURM).unwrap().unwrap();
        assert!(slurm.among(&[4, 5], "17.0.1".into()).unwrap().leaves_host());
    }

    #[test]
    fn the_launcher_that_started_the_process_wins() {
        let both = [&OMPI[..], &SLURM[..]].concat();
        assert_eq!(from(&both).unwrap().unwrap().rank, 2);
        let named = [&SLURM[..], &[(JOB_VARIABLE, "mine")]].concat();
        assert_eq!(from(&named).unwrap().unwrap().job, "mine");
    }

    #[test]
    fn a_batch_script_of_slurm_and_a_process_alone_are_no_launch() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "17")];
        assert_eq!(from(&batch).unwrap(), None);
        let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        assert_eq!(from(&alone).unwrap(), None);
    }

    #[test]
    fn contradictions_are_named() {
        for (vars, expected) in [
            (&[("PMI_SIZE", "4")][..], "PMI_SIZE is 4, but PMI_RANK is not set"),
            (&[("PMI_SIZE", "4"), ("PMI_RANK", "4")], "PMI_RANK is 4, but PMI_SIZE is 4"),
            (&[("PMI_SIZE", "x"), ("PMI_RANK", "0")], "PMI_SIZE is 'x', which is no number"),
        ] {
            let error = from(vars).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        }
        let many = [("PMI_SIZE", "257"), ("PMI_RANK", "0")];
        assert!(matches!(from(&many), Err(ClusterError::Nodes { nodes: 257 })));
    }
}
