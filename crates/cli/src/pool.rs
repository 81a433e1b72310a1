//! `millstream pool`: the tables of memory servers.

use std::process::ExitCode;
use std::task::Waker;
use std::time::Duration;

use millstream::pool::{
    ACCESS, At, BlockRange, Client, Manifest, NodeCache, Pinned, PoolAccess, PoolError, SERVERS,
    buckets_of, followed,
};
use serde_json::json;

use crate::args::{PoolArgs, PoolCommand, PoolCommandArgs, ProgressStyle};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::session::{pool_options, print};
use crate::table::{lines, table};
use crate::{human, log};

/// Blocks that are read ahead.
const WINDOW: usize = 64;
/// How often it looks whether a block has come.
const LOOK: Duration = Duration::from_millis(1);

/// Runs the command.
pub(crate) fn pool(args: &PoolCommandArgs) -> Result<ExitCode, Failure> {
    log::start(&args.log.log, &Screen::new(ProgressStyle::None), None);
    let client = client(&args.pool)?;
    let text = match &args.command {
        PoolCommand::Ls => list(&client, args.json),
        PoolCommand::Stat { table: None } => servers(&client, args.json),
        PoolCommand::Stat { table: Some(table) } => table_stat(&client, table, args.json),
        PoolCommand::Verify { table } => verify(&client, table, args.json),
        PoolCommand::Drop { table } => dropped(&client, table, args.json),
        PoolCommand::Forget { server } => forgotten(&client, server, args.json),
    };
    print(&text.map_err(|error| failure(&error))?);
    Ok(ExitCode::SUCCESS)
}

fn client(args: &PoolArgs) -> Result<Client, Failure> {
    let Some(options) = pool_options(args) else {
        let hint = "--pool 127.0.0.1:7740 or the variable MILLSTREAM_POOL names a memory server, \
                    and `millstream memory --bytes 8GiB` starts one";
        return Err(Failure::usage("no pool is named", Some(hint)));
    };
    Client::new(options).map_err(|error| Failure::runtime(&error.to_string(), None))
}

fn failure(error: &PoolError) -> Failure {
    let hint = match error {
        PoolError::Unreachable { .. } => {
            Some("`millstream memory --bytes 8GiB` starts one; --pool names its address".to_owned())
        }
        PoolError::Unusable { .. } => Some(ACCESS.to_owned()),
        PoolError::NoTable { nearest: Some(near), .. } => Some(format!("did you mean '{near}'?")),
        PoolError::Damaged { .. } => {
            Some("`millstream pool drop TABLE` removes it; load it again then".to_owned())
        }
        PoolError::WrongServers { .. } => Some(SERVERS.to_owned()),
        PoolError::NoTable { .. } => Some("`millstream pool ls` lists the tables".to_owned()),
        _ => None,
    };
    Failure::runtime(&error.to_string(), hint.as_deref())
}

fn list(client: &Client, json: bool) -> Result<String, PoolError> {
    let tables = client.tables()?;
    if json {
        let tables = tables.iter().map(|of| {
            json!({
                "table": of.name, "version": of.version, "rows": of.rows, "bytes": of.bytes,
                "leases": of.leases, "damaged": of.damaged,
            })
        });
        return Ok(lines(tables));
    }
    let rows = tables.iter().map(|of| {
        let numbers = [of.version.to_string(), of.rows.to_string(), human::bytes(of.bytes)];
        let [version, rows, bytes] = numbers;
        if of.damaged {
            return [&*of.name, "damaged", "", "", ""].map(str::to_owned).into();
        }
        vec![of.name.clone(), version, rows, bytes, of.leases.to_string()]
    });
    Ok(table(&["table", "version", "rows", "bytes", "leases"], rows.collect()))
}

fn servers(client: &Client, json: bool) -> Result<String, PoolError> {
    let servers = client.stat()?;
    if json {
        let servers = servers.iter().map(|of| {
            json!({
                "server": of.name, "bytes_max": of.bytes_max, "bytes": of.bytes,
                "free": of.bytes_max.saturating_sub(of.bytes), "extents": of.extents,
                "tables": of.tables, "versions": of.versions, "damaged": of.damaged,
                "leases": of.leases, "loads": of.loads, "clients": of.clients,
                "mapped": of.mapped, "reads": of.reads, "read_bytes": of.read_bytes,
                "refusals": of.refusals,
            })
        });
        return Ok(lines(servers));
    }
    let rows = servers.iter().map(|of| {
        let free = of.bytes_max.saturating_sub(of.bytes);
        let bytes = [of.bytes_max, of.bytes, free].map(human::bytes);
        let counts = [of.extents, of.tables, of.versions, of.leases, of.loads, of.clients];
        let counts = counts.map(u64::from).into_iter();
        let counts = counts.chain([of.mapped.into(), of.reads, of.refusals]);
        let name = std::iter::once(of.name.clone());
        name.chain(bytes).chain(counts.map(|count| count.to_string())).collect()
    });
    let head = [
        "server", "bytes", "used", "free", "extents", "tables", "versions", "leases", "loads",
        "clients", "mapped", "reads", "refusals",
    ];
    Ok(table(&head, rows.collect()))
}

fn table_stat(client: &Client, name: &str, json: bool) -> Result<String, PoolError> {
    let (Pinned { manifest, blocks }, nodes) = newest(client, name)?;
    let bytes = bytes_of(&manifest);
    let buckets = buckets_of(&manifest.definition, name).into_iter();
    let buckets: Vec<String> = buckets.map(|(by, count)| format!("{by} into {count}")).collect();
    let (strips, extents) = (manifest.strips.len(), manifest.extents.len());
    let partitions = manifest.definition.partitions();
    if json {
        return Ok(lines(std::iter::once(json!({
            "table": manifest.table, "version": manifest.version, "rows": manifest.rows(),
            "columns": manifest.definition.columns.len(), "partitions": partitions,
            "buckets": buckets, "strips": strips, "extents": extents, "bytes": bytes,
            "layout": if nodes.is_some() { "lists" } else { "directory" }, "nodes": nodes,
            "origin": manifest.origin.as_ref().map(|origin| &origin.name),
        }))));
    }
    let origin = manifest.origin.as_ref().map_or("none", |origin| &origin.name);
    let fields = [
        ("table", manifest.table.clone()),
        ("version", manifest.version.to_string()),
        ("rows", manifest.rows().to_string()),
        ("columns", manifest.definition.columns.len().to_string()),
        ("partitions", partitions.to_string()),
        ("buckets", if buckets.is_empty() { "none".into() } else { buckets.join(", ") }),
        ("strips", strips.to_string()),
        (
            "layout",
            match nodes {
                None => "directory".into(),
                Some(nodes) => format!("lists, {}", human::counted(nodes as u64, "node")),
            },
        ),
        ("extents", extents.to_string()),
        ("bytes", human::bytes(bytes)),
        ("origin", origin.to_owned()),
        ("read", blocks.describe()),
    ];
    Ok(fields.iter().map(|(name, value)| format!("{name:<12}{value}\n")).collect())
}

/// The newest version with its directory, and how many nodes tell it if it is kept in lists.
fn newest(client: &Client, name: &str) -> Result<(Pinned, Option<usize>), PoolError> {
    followed(client.pin(name, At::Newest)?, &NodeCache::default())
}

/// Bytes of all blocks.
fn bytes_of(manifest: &Manifest) -> u64 {
    let blocks = manifest.strips.iter().flat_map(|strip| &strip.blocks);
    blocks.map(|block| u64::from(block.bytes)).sum()
}

fn verify(client: &Client, name: &str, json: bool) -> Result<String, PoolError> {
    // The manifest was checked when it was decoded.
    let (pinned, _) = newest(client, name)?;
    client.verify(&pinned.manifest)?;
    let mut reader = pinned.blocks.open(WINDOW, Waker::noop().clone())?;
    let blocks = pinned.manifest.strips.iter().flat_map(|strip| &strip.blocks);
    let mut blocks = blocks.filter(|block| block.bytes > 0);
    let (mut count, mut bytes) = (0_u64, 0);
    loop {
        while reader.wanted() < WINDOW {
            let Some(block) = blocks.next() else { break };
            reader.want(BlockRange { at: block.at, bytes: block.bytes });
        }
        if reader.wanted() == 0 {
            break;
        }
        match reader.next()? {
            Some(block) => {
                count += 1;
                bytes += (*block).as_ref().len() as u64;
            }
            None => std::thread::sleep(LOOK),
        }
    }
    let (table, version) = (&pinned.manifest.table, pinned.manifest.version);
    if json {
        let value = json!({ "table": table, "version": version, "blocks": count, "bytes": bytes });
        return Ok(lines(std::iter::once(value)));
    }
    let (blocks, bytes) = (human::counted(count, "block"), human::bytes(bytes));
    Ok(format!("version {version} of '{table}' is intact: {blocks}, {bytes}\n"))
}

fn dropped(client: &Client, name: &str, json: bool) -> Result<String, PoolError> {
    client.drop_table(name)?;
    Ok(if json { lines(std::iter::once(json!({ "dropped": name }))) } else { String::new() })
}

fn forgotten(client: &Client, server: &str, json: bool) -> Result<String, PoolError> {
    let (tables, extents) = client.forget(server)?;
    if json {
        let value = json!({ "forgotten": server, "dropped": tables, "freed_extents": extents });
        return Ok(lines(std::iter::once(value)));
    }
    if tables.is_empty() && extents == 0 {
        return Ok(format!("nothing is known of a memory server '{server}' that is gone\n"));
    }
    let dropped = tables.iter().map(|table| format!("dropped '{table}'\n"));
    let freed = match extents {
        0 => String::new(),
        count => format!("freed {} of its tables\n", human::counted(count, "extent")),
    };
    Ok(dropped.chain([freed]).collect())
}
