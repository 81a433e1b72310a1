//! `millstream fabric`: the transports of this machine.

use std::process::ExitCode;

use millstream::{rdma_groups, rdma_survey};

use crate::args::{FabricArgs, FabricCommand};
use crate::failure::Failure;

/// Shows it.
pub(crate) fn fabric(args: &FabricArgs) -> Result<ExitCode, Failure> {
    let FabricCommand::Info = args.show;
    let (found, tried) = rdma_survey().map_err(|error| Failure::usage(&error, None))?;
    println!("shm            shared memory: processes of this machine");
    println!("tcp            sockets: any machine");
    match (&found.choice, &tried) {
        (Ok(choice), Some(Ok(_))) => println!("verbs          RDMA: {} is ready", choice.device),
        _ => println!("verbs          RDMA: cannot be used here"),
    }
    print!("\n{found}");
    match tried {
        None => {}
        Some(Err(error)) => println!("with itself    does not connect: {error}"),
        Some(Ok(caps)) => {
            println!(
                "with itself    connects: publish {:?}, atomics {:?}, inline {} bytes, {} \
                 operations of {} KiB",
                caps.publish,
                caps.atomics,
                caps.max_inline,
                caps.max_ops,
                caps.max_msg / 1024
            );
            println!("multicast      {}", groups());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The fate of datagrams to a group, in words.
fn groups() -> String {
    match rdma_groups() {
        Ok(Some((bytes, true))) => format!("datagrams of {bytes} bytes reach a group"),
        Ok(Some((_, false))) => "datagrams to a group do not arrive".into(),
        Ok(None) => "none: it needs a device with groups, and RoCE v2 over IPv4".into(),
        Err(reason) => format!("none: {reason}"),
    }
}
